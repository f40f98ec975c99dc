"""Who visits: sessions, the identity that the engine gives them, and what a page asks with."""
