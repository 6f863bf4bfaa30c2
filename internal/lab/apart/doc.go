// Package apart has only tests. It draws servers with two to five quotas, which count by path, method, credential or model, and plays clients
// of them in fake time, each quota alone and all together:
//
//	go test ./internal/lab/apart -run TestQuotas -seed 17 -v
//
// prints the world of a seed, and what each quota got. Without a seed, it prints the means of all seeds for each client, and checks them.
package apart
