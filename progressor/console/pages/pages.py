"""All pages."""

from progressor.console.pages import bulk, gates, jobs, schedules
from progressor.console.pages.engine import audit, doctor, namespaces, overview, replicas
from progressor.console.pages.page import Page
from progressor.console.pages.processes import failures, listed, process

PAGES: tuple[Page, ...] = (
    overview.PAGE,
    listed.PAGE,
    process.PAGE,
    failures.PAGE,
    bulk.LIST,
    bulk.NEW,
    bulk.OPERATION,
    jobs.LIST,
    jobs.JOB,
    schedules.LIST,
    schedules.SCHEDULE,
    gates.LIST,
    gates.GATE,
    gates.ORDERS,
    namespaces.LIST,
    namespaces.NAMESPACE,
    replicas.PAGE,
    doctor.PAGE,
    audit.LIST,
    audit.ENTRY,
)
