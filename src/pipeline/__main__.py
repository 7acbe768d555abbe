from pipeline.command.main import main

main()
