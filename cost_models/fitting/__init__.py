"""Cost models fitted to measurements: data sets, training, calibration, reports, and folders of machines."""
