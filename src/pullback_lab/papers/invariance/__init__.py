"""van Oostrum, Müller, Ay: Invariance properties of the natural gradient in overparametrised
systems.
"""
