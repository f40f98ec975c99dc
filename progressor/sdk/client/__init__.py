"""The clients. Start with ``client``, then ``processes``.

Each other module has the requests of one service, as coroutines and as blocking methods.
"""
