"""ProcessService: ``servicer``, and how its ``requests`` are read and ``responses`` written."""
