"""How one generation is stepped: a real engine and a modelled one behind one protocol."""
