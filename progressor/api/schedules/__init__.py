"""ScheduleService: ``servicer``, and ``spec`` for what a schedule does and when."""
