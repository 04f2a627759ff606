# To be sourced where `ray start` runs: a node that is cut off or frozen is found within 30 s instead of minutes.
export RAY_grpc_client_keepalive_time_ms=5000
export RAY_grpc_client_keepalive_timeout_ms=5000
export RAY_grpc_keepalive_time_ms=5000
export RAY_grpc_keepalive_timeout_ms=5000
export RAY_health_check_period_ms=2000
export RAY_health_check_timeout_ms=3000
export RAY_health_check_failure_threshold=3
