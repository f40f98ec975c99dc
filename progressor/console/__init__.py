"""The web console: what an engine does and why, in a browser, and the actions on it.

It speaks gRPC to the engine through the SDK, with the identity of the visitor, so the engine
decides what they see and may do. Pages are made here, on the server; a browser needs no script for
any of them, and with scripts they are live.

Start at ``app``: the routes. A page is a function in ``pages`` and a template of the same name; an
action is a row in ``actions``. ``live`` sends pages again as they change, ``visits`` knows who
visits, ``words`` speaks their language, ``rendering`` has what a status looks like.
"""
