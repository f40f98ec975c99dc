"""Operations of the engine with a fault in the middle, and the load around them."""
