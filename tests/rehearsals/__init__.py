"""What operators do rarely, and must not find out to be broken then: upgrades, backups, restores.

Each how-to page about such an operation has a rehearsal, which follows the page. `make rehearse`
runs them. They need the history of this repository and the tools of PostgreSQL, which the embedded
one brings along.
"""
