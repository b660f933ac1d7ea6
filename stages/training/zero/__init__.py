"""DeepSpeed ZeRO behind one object, the engine."""
