"""A benchmark's report as one HTML page that stands alone; needs paceline[report]."""
