"""The languages of the console: catalogs of gettext, and dates and numbers by the rules of each."""
