"""What tests need and no test is in: builders, fakes, a cluster, a proxy."""
