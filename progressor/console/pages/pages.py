"""All pages."""

from progressor.console.pages import overview, processes
from progressor.console.pages.page import Page

PAGES: tuple[Page, ...] = (overview.PAGE, processes.LIST, processes.PROCESS)
