"""The pages: what each asks the engine for; its template has the same name.

A page's ``load`` returns what its template shows, without a word of any language, so that one load
serves watchers in all of them.
"""
