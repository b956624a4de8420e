// For leak checkers: MPI's plug-ins stay loaded, so that what they never free is known by their names
// (cmake/lsan.supp).
int dlclose(void *library);

int dlclose(void *library) {
    (void)library;
    return 0;
}
