"""K and G from the layers of a model, without forming J, where the program allows it."""
