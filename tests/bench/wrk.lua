-- POSTs the file named by the first argument, and prints what was counted as one line of JSON.

function init(args)
  wrk.method = "POST"
  wrk.body = assert(io.open(args[1], "rb")):read("*a")
end

function done(summary, latency, requests)
  local failed = summary.errors
  local errors = failed.connect + failed.read + failed.write + failed.status + failed.timeout
  local form = '{"requests": %d, "duration_us": %d, "p50_us": %d, "p99_us": %d, "errors": %d}\n'
  local p50, p99 = latency:percentile(50), latency:percentile(99)
  io.write(string.format(form, summary.requests, summary.duration, p50, p99, errors))
end
