"""`python -m serving.page +policy=citer ...`: a page on which a device and its cloud write an answer, token by token.

This process runs device and cloud at the pace of the named chips, over the named link; service.page.pace=wall and
service.page.shaped=false show how fast this machine is instead. With service.page.remote_cloud=true the cloud is a
`python -m serving.cloud` process with the same arguments. Other policies beside the first: page=NAME, of conf/page, or
+policy@page.policies.NAME=NAME.
"""

from pipeline.command.service import main

if __name__ == "__main__":
    main("page", __doc__, ("page=default",))
