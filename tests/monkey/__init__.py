"""The monkey: several replicas under load, and a fault every few seconds, judged at the end.

`python -m tests.monkey --minutes N --seed S`, or `make chaos`. ``plan.py`` says what will break,
``scene.py`` holds what can break, ``faults.py`` breaks it. ``clients.py`` go on asking, on the
``lines.py`` there are, of the processes in ``herd.py``, and keep ``notes.py``; ``processor.py``
answers. ``foremen.py`` submit jobs and see to them (``jobs.py``). ``judges.py`` say whether
anything was lost, and ``report.py`` what it cost, with ``pace.py`` for the rates on a machine whose
speed ``reference.py`` measures meanwhile.
``table.py`` makes a table of several runs.
Start reading at ``__main__.py``.
"""
