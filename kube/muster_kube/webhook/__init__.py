"""Admission webhooks: their HTTPS server, its certificates, and the AdmissionReview."""
