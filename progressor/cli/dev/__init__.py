"""The commands ``dev`` and ``example-processor``, which run the examples."""
