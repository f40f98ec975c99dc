"""From values to HTML: templates in each language, statuses, payloads and drawings."""
