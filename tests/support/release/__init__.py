"""What a release is made of, besides the code."""
