module casulo.dev/dataplane

go 1.25.0
