"""van Oostrum, Ay: Parametrisation independence of the natural gradient in overparametrised systems
(extended abstract).
"""
