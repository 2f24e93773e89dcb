"""Everything that depends on the internals of JAX: compiler options, LAPACK calls, jaxprs."""
