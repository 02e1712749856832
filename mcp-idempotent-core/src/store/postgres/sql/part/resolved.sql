-- The trail of a resolution. The new token fences the attempt.
lease_until = NULL, token = {token},
    resolved_kind = $3, resolved_by = $4, resolved_why = $5, resolved_at = clock.now
