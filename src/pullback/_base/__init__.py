"""The spaces and their vocabulary: types, trees, tangent vectors, results, argument checks."""
