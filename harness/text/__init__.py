"""Results as text and pictures: tables, markdown, csv, json, plots."""
