.PHONY: bench-edge
bench-edge: ## stack-proxy's files, TLS and tokens against nginx, some 3 minutes; needs root and nginx-light
	CGO_ENABLED=0 go build -trimpath -o $(BIN)/stack-proxy ./cmd/stack-proxy
	@cd test/e2e && go build -o $(BIN)/bench-edge ./cmd/bench-edge
	go test -c -trimpath -o $(BIN)/jwt.test ./pkg/edge/jwt
	@chrt --rr 10 $(BIN)/bench-edge -proxy $(BIN)/stack-proxy -tokens $(BIN)/jwt.test -out $(BUILD)/bench/edge.json
