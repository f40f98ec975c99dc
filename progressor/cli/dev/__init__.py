"""The commands ``dev`` and ``example-processor``: an engine with an example to look at."""
