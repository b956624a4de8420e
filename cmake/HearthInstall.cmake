# What `make install` puts under a prefix: the program, what it finds beside itself (base/installed.h), and the manual
# pages and completions, which the program prints itself. The list of all that was installed lies with the configurations,
# so that uninstalling (cmake/HearthUninstall.cmake) needs neither this build nor its source.
include(GNUInstallDirs)
set_target_properties(hearth PROPERTIES INSTALL_RPATH_USE_LINK_PATH TRUE) # libraries that are in no usual place

install(TARGETS hearth RUNTIME DESTINATION bin)
install(DIRECTORY configs DESTINATION share/hearth FILES_MATCHING PATTERN "*.toml" PATTERN published EXCLUDE)
set(made ${CMAKE_BINARY_DIR}/installed)
install(CODE "
    function(hearth_prints file)
        execute_process(COMMAND $<TARGET_FILE:hearth> \${ARGN} OUTPUT_FILE ${made}/\${file} COMMAND_ERROR_IS_FATAL ANY)
    endfunction()
    file(REMOVE_RECURSE ${made})
    file(MAKE_DIRECTORY ${made})
    execute_process(COMMAND $<TARGET_FILE:hearth> man --write ${made}/man COMMAND_ERROR_IS_FATAL ANY)
    hearth_prints(bash completion bash)
    hearth_prints(zsh completion zsh)")
install(DIRECTORY ${made}/man/ DESTINATION share/man/man1)
install(FILES ${made}/bash DESTINATION share/bash-completion/completions RENAME hearth)
install(FILES ${made}/zsh DESTINATION share/zsh/site-functions RENAME _hearth)
install(CODE "
    set(list share/hearth/installed-files.txt)
    foreach(file \${CMAKE_INSTALL_MANIFEST_FILES})
        file(RELATIVE_PATH file \${CMAKE_INSTALL_PREFIX} \${file})
        list(APPEND list \${file})
    endforeach()
    list(JOIN list \"\\n\" text)
    file(WRITE \$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/share/hearth/installed-files.txt \"\${text}\\n\")")
