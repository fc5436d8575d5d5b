"""What predictions are worth: intervals, comparisons, slices, calibration, behaviour, tables."""
