"""Access rules: rights, the roles that include them, and the bindings that give roles.

Pure rules, imported by ``api`` and ``storage``. Start with ``rights``.
"""
