from pipeline.main import main

main()
