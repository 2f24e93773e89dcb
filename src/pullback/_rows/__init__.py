"""The whitened Jacobian A = SᵀJ at a point: linearised once, in graded rows."""
