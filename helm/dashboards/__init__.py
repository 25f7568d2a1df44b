"""The Grafana dashboards of the chart, one module for each reader."""
