"""One adapter per library. Each has `PACKAGES`, whose versions are recorded, and `build(workload,
approach) -> Approach`.
"""
