def write_page(path): return path
