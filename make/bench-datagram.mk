.PHONY: bench-datagram
bench-datagram: ## stack-proxy's TFTP and syslog against nginx, some 6 minutes; needs root, nginx-light, libnginx-mod-stream
	CGO_ENABLED=0 go build -trimpath -o $(BIN)/stack-proxy ./cmd/stack-proxy
	@cd test/e2e && go build -o $(BIN)/bench-datagram ./cmd/bench-datagram
	@chrt --rr 10 $(BIN)/bench-datagram -proxy $(BIN)/stack-proxy -out $(BUILD)/bench/proxy.json
