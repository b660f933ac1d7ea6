"""The model: configuration, decoder, losses, parameter and FLOP counts."""
