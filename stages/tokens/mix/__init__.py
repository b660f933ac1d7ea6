"""The stage mix: weighs sources, holds documents out and packs sequences."""
