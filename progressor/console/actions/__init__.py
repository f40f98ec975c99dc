"""What visitors can do: each action a row, with its form, its right and its command.

The engine checks every action; a page only spares a visitor the forms that would be refused.
"""
