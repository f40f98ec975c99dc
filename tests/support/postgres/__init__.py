"""PostgreSQL servers, what stands in front of them, and what their statements cost."""
