.PHONY: bench-boots-page
bench-boots-page: ## how fast the boots page shows machines while 2,000 boot, a minute
	CGO_ENABLED=0 go build -trimpath -o $(BIN)/stack-proxy ./cmd/stack-proxy
	@cd test/e2e && go build -o $(BIN)/bench-boots-page ./cmd/bench-boots-page
	@chrt --rr 10 $(BIN)/bench-boots-page -proxy $(BIN)/stack-proxy -out $(BUILD)/bench/boot.json
