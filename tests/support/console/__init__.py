"""A console over real HTTP before a real engine, somebody who visits it, and a reader of pages."""
