"""Values to columns and rows to values, without a connection.

Imported by everything else in ``storage``. Start with ``records``, which reads rows by the type
hints of what they become; ``documents`` has the exceptions, ``arrays`` what batches send.
"""
